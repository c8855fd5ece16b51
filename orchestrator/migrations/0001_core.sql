-- Campaigns and what they concluded. Times are Unix seconds (REAL); amounts are integers unless said otherwise.
CREATE TABLE campaign (
    id TEXT PRIMARY KEY,
    created REAL NOT NULL,
    finished REAL,
    file TEXT NOT NULL,                 -- path of the campaign file, for people
    spec TEXT NOT NULL,                 -- the validated campaign file as JSON
    baseline TEXT NOT NULL,             -- commit of the generation that candidates are judged against
    state TEXT NOT NULL CHECK (state IN ('running', 'interrupted', 'done', 'failed')),
    error TEXT
);
CREATE TABLE arm (
    campaign TEXT NOT NULL REFERENCES campaign(id),
    name TEXT NOT NULL,                 -- 'baseline', or the candidate as the person named it
    role TEXT NOT NULL CHECK (role IN ('baseline', 'candidate')),
    proposed TEXT NOT NULL,             -- the commit that was named
    judged TEXT,                        -- J: the commit that was run (merged with the generation); NULL if refused
    tree TEXT,                          -- tree hash of J's agent paths, verified at export
    left_out TEXT NOT NULL DEFAULT '[]',-- JSON list: changed paths outside the agent paths
    refused TEXT,                       -- reason, when it could not be run at all
    PRIMARY KEY (campaign, name)
);
CREATE TABLE trial (
    id TEXT PRIMARY KEY,
    campaign TEXT REFERENCES campaign(id),
    arm TEXT NOT NULL,
    task TEXT NOT NULL,
    repeat INTEGER NOT NULL,
    attempt INTEGER NOT NULL DEFAULT 1, -- counts tries after invalid outcomes
    position INTEGER NOT NULL,          -- order in the plan
    state TEXT NOT NULL CHECK (state IN ('planned', 'running', 'done')),
    outcome TEXT CHECK (outcome IN ('completed', 'limit', 'crashed', 'invalid')),
    detail TEXT,                        -- limit's name, crash or invalid cause
    reward REAL,
    disqualified TEXT,                  -- evidence of tampering, in words
    started REAL,
    finished REAL,
    record TEXT,                        -- the whole TrialRecord as JSON
    UNIQUE (campaign, arm, task, repeat)
);
CREATE INDEX trial_by_campaign ON trial(campaign, state);
CREATE TABLE verdict (
    campaign TEXT NOT NULL REFERENCES campaign(id),
    arm TEXT NOT NULL,
    verdict TEXT NOT NULL CHECK (verdict IN ('better', 'worse', 'equivalent', 'inconclusive', 'disqualified')),
    numbers TEXT NOT NULL,              -- JSON: difference, interval, p, adjusted p, guardrails, exclusions, reasons
    PRIMARY KEY (campaign, arm)
);
-- What runs right now, for `sia status`; a row whose process is gone is stale and is removed at the next start.
CREATE TABLE running (
    id TEXT PRIMARY KEY,                -- instance id
    kind TEXT NOT NULL CHECK (kind IN ('main', 'test')),
    supervisor INTEGER NOT NULL,        -- process id that owns it
    supervisor_started REAL NOT NULL,   -- its start time, since process ids are used again
    label TEXT NOT NULL,                -- 'task × arm × repeat', or the generation
    state TEXT NOT NULL,
    started REAL NOT NULL,
    iterations INTEGER NOT NULL DEFAULT 0,
    tokens INTEGER NOT NULL DEFAULT 0,
    cost REAL,                          -- NULL = unknown, never 0
    updated REAL NOT NULL
);
CREATE TABLE event (
    id INTEGER PRIMARY KEY,
    time REAL NOT NULL,
    kind TEXT NOT NULL,
    subject TEXT NOT NULL,
    text TEXT NOT NULL
);
