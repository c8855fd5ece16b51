-- Heads of the journals whose entries lie in exchanges/exchanges.db. A sealed journal gets no more entries.
CREATE TABLE journal (
    id TEXT PRIMARY KEY,
    created REAL NOT NULL,              -- Unix seconds
    meta TEXT NOT NULL,                 -- JSON, for people and `sia log`: kind, campaign, arm, task, repeat, …
    entries INTEGER NOT NULL,           -- how many entries the head covers
    head TEXT NOT NULL,                 -- hash of the last of them; of the meta where there is none
    sealed REAL                         -- Unix seconds; NULL while it is open, or if its writer was killed
);
