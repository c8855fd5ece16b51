-- What the agent's clones stand for, and the changes that came back from inside.
CREATE TABLE clone_base (
    synthetic TEXT PRIMARY KEY,         -- commit of the agent-paths history, as the agent's clone has it
    full_commit TEXT NOT NULL           -- the full commit that it stands for
);
CREATE TABLE proposal (
    id INTEGER PRIMARY KEY,             -- the candidate is named `proposal/<id>`
    commit_id TEXT NOT NULL UNIQUE,     -- the one full commit made of it, kept by refs/sia/proposals/<id>
    base TEXT NOT NULL,                 -- its parent: the full commit that the clone's base stands for
    tip TEXT NOT NULL,                  -- the commit inside the bundle
    branch TEXT NOT NULL,               -- as the agent named it; untrusted text, like `why`
    why TEXT NOT NULL,
    origin TEXT NOT NULL,               -- 'main' or the id of a trial
    left_out INTEGER NOT NULL,          -- 1 if it held something outside the agent paths, which was dropped
    created REAL NOT NULL
);
