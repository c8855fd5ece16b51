#!/bin/bash
set -eu
python3 - <<'END'
import configparser
import json
merged = configparser.ConfigParser(interpolation=None)
merged.read(["base.ini", "site.ini", "host.ini"], encoding="utf-8")
with open("settings.json", "w", encoding="utf-8") as out:
    json.dump({name: dict(merged[name]) for name in merged.sections()}, out, indent=2)
END
