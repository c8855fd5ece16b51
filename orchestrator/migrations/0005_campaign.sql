-- What a campaign was started with besides its file: a resumed one goes on with exactly that.
ALTER TABLE campaign ADD COLUMN setup TEXT NOT NULL DEFAULT '{}'; -- JSON: [agent] settings, the engine's command
CREATE TABLE campaign_task (
    campaign TEXT NOT NULL REFERENCES campaign(id),
    position INTEGER NOT NULL,
    name TEXT NOT NULL,
    path TEXT NOT NULL,                 -- the task's directory
    key TEXT NOT NULL,                  -- content hash; a task that has changed since can't be compared
    split TEXT NOT NULL,
    PRIMARY KEY (campaign, name)
);
