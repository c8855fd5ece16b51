-- What `sia watch` shows of a running instance; its owner writes these at most once a second.
ALTER TABLE running ADD COLUMN journal TEXT;         -- id of the journal that the broker writes
ALTER TABLE running ADD COLUMN campaign TEXT;
ALTER TABLE running ADD COLUMN arm TEXT;
ALTER TABLE running ADD COLUMN task TEXT;
ALTER TABLE running ADD COLUMN repeat INTEGER;
ALTER TABLE running ADD COLUMN limit_seconds REAL;   -- wall clock, without pauses; NULL = none
ALTER TABLE running ADD COLUMN last_action TEXT;     -- name of the element in the last answer
ALTER TABLE running ADD COLUMN cpu REAL;             -- seconds used so far by all its processes; NULL = not known yet
ALTER TABLE running ADD COLUMN memory_mb REAL;
ALTER TABLE running ADD COLUMN disk_mb REAL;         -- in blocks of its upper layers
ALTER TABLE running ADD COLUMN directory TEXT;       -- on the host: stdout.txt, stderr.txt, stdin.txt, layers/
ALTER TABLE running ADD COLUMN paused REAL;          -- since when; NULL = it is not paused
ALTER TABLE running ADD COLUMN paused_seconds REAL NOT NULL DEFAULT 0; -- of pauses that are over
-- What people ask of the process that owns an instance or a campaign. It looks here about four times a second.
CREATE TABLE request (
    id INTEGER PRIMARY KEY,
    time REAL NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('kill', 'pause', 'resume', 'message', 'stop_campaign')),
    subject TEXT NOT NULL,              -- id of the instance or the campaign
    text TEXT NOT NULL DEFAULT '',      -- the message
    asked_by TEXT NOT NULL,             -- the user who asked, by name
    taken REAL,                         -- when the owner began with it, or nobody would any more
    refused INTEGER NOT NULL DEFAULT 0, -- 1: it was not done, `result` says why
    result TEXT                         -- what was done, in words; NULL while it is not done
);
CREATE INDEX request_open ON request(id) WHERE taken IS NULL;
-- Results that a person had run again. The row of `trial` holds the newest attempt.
CREATE TABLE trial_attempt (
    trial TEXT NOT NULL REFERENCES trial(id),
    attempt INTEGER NOT NULL,
    time REAL NOT NULL,                 -- when it was set aside
    why TEXT NOT NULL,
    outcome TEXT,
    detail TEXT,
    started REAL,
    finished REAL,
    record TEXT,                        -- the whole TrialRecord as JSON
    PRIMARY KEY (trial, attempt)
);
