#!/usr/bin/env python3
"""Write configs/schema.json, with which editors complete and check YAML.

python tools/config_schema.py           # after an option has changed
python tools/config_schema.py --check   # status 1 if it is not up to date; writes nothing
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from sslengine import catalog
from sslengine.config.json_schema import json_schema

FILE = Path(__file__).resolve().parents[1] / "configs" / "schema.json"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    given = parser.parse_args(arguments)
    assert catalog  # importing it declares all names
    text = json.dumps(json_schema(), indent=1, sort_keys=True) + "\n"
    if given.check:
        same = FILE.exists() and FILE.read_text() == text
        print("up to date" if same else f"{FILE} is not up to date: python tools/config_schema.py")
        return 0 if same else 1
    FILE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
