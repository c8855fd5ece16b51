-- The promotion ledger: sole authority over what runs. Refs and exports are derived from it and repaired at start.
CREATE TABLE generation (
    number INTEGER PRIMARY KEY,
    commit_id TEXT NOT NULL,            -- exactly what was judged
    tree TEXT NOT NULL,                 -- tree hash of its agent paths, verified at export
    parent INTEGER REFERENCES generation(number),
    candidate TEXT NOT NULL,            -- the name a person or the campaign gave it
    campaign TEXT,                      -- the campaign whose verdict it rests on
    accepted TEXT,                      -- reason of the person who accepted it without `better`
    created REAL NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('trial', 'good', 'bad')),
    cause TEXT                          -- why it is bad
);
-- A tree that did not hold up is never promoted again without a person.
CREATE TABLE bad_tree (
    tree TEXT PRIMARY KEY,
    generation INTEGER NOT NULL REFERENCES generation(number),
    time REAL NOT NULL,
    cause TEXT NOT NULL
);
CREATE TABLE promotion (
    id INTEGER PRIMARY KEY,
    kind TEXT NOT NULL CHECK (kind IN ('promotion', 'rollback')),
    candidate TEXT NOT NULL,
    campaign TEXT,
    accepted TEXT,
    approved TEXT,                      -- 'policy' or 'person'; NULL while STAGED
    old INTEGER NOT NULL REFERENCES generation(number),
    new INTEGER REFERENCES generation(number), -- of a promotion: NULL until TRIAL gives it a number
    old_commit TEXT NOT NULL,
    new_commit TEXT NOT NULL,
    tree TEXT NOT NULL,
    with_state INTEGER NOT NULL DEFAULT 0, -- rollback: data go back too
    nonce TEXT NOT NULL UNIQUE,
    tries INTEGER NOT NULL CHECK (tries >= 0),
    launches INTEGER NOT NULL DEFAULT 0,
    given_back INTEGER NOT NULL DEFAULT 0 CHECK (given_back IN (0, 1)),
    frozen TEXT,                        -- JSON list of data layers at the moment of the change; NULL until frozen
    base TEXT,                          -- JSON list: the layers that trial boots start from (= frozen, unless with_state)
    stdin_offset INTEGER,               -- offset F in the message log at that moment
    created REAL NOT NULL,
    finished REAL,
    outcome TEXT CHECK (outcome IN ('healthy', 'rolled_back', 'given_up', 'withdrawn')),
    cause TEXT
);
CREATE UNIQUE INDEX promotion_open ON promotion((outcome IS NULL)) WHERE outcome IS NULL;
CREATE TABLE ledger (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    state TEXT NOT NULL CHECK (state IN ('STABLE', 'STAGED', 'INTENT', 'TRIAL', 'HOLD', 'ROLLBACK', 'SAFE')),
    generation INTEGER NOT NULL REFERENCES generation(number), -- what main is
    last_good INTEGER NOT NULL REFERENCES generation(number),
    promotion INTEGER REFERENCES promotion(id), -- the open one
    probation INTEGER NOT NULL DEFAULT 0, -- 1 after a rollback until the old generation is healthy again
    crashes INTEGER NOT NULL DEFAULT 0, -- in a row, across starts of the supervisor; a healthy period resets it
    cause TEXT
);
-- Durable data of the main instance: frozen layers (bottom first), the level that is written now, the messages taken.
CREATE TABLE main_data (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    stack TEXT NOT NULL DEFAULT '[]',   -- JSON list of level numbers
    upper INTEGER NOT NULL DEFAULT 1,
    next INTEGER NOT NULL DEFAULT 2,    -- level numbers are never used again
    stdin_offset INTEGER NOT NULL DEFAULT 0 -- bytes of the message log that the saved state is known to hold
);
-- One row per start of the main instance. `nonce` names its journal.
CREATE TABLE launch (
    nonce TEXT PRIMARY KEY,
    generation INTEGER NOT NULL REFERENCES generation(number),
    promotion INTEGER REFERENCES promotion(id),
    level INTEGER NOT NULL,             -- the level of durable data that it wrote
    stdin_start INTEGER NOT NULL,       -- offset in the message log from which it was fed
    stdin_count INTEGER,                -- the agent's own count of bytes taken, in the state it started from; NULL = none
    started REAL NOT NULL,
    finished REAL,
    valid INTEGER NOT NULL DEFAULT 0,   -- valid iterations in the journal of this nonce
    exit_code INTEGER,
    cause TEXT                          -- 'stopped', 'restart', 'crash …', 'no progress …', NULL while it runs
);
