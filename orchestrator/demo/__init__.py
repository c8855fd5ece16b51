"""`sia demo`: the whole story on shipped examples, in a throw-away repository that lies in the state directory."""
