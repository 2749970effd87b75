"""``python -m tests.torture.payload_agents pydantic_agent '{"address": …}'``: one run, and what came."""

from __future__ import annotations

import asyncio
import json
import sys
from importlib import import_module

from tests.torture.payload_agents.measured import Options, measure

if __name__ == "__main__":
    program = import_module(f"tests.torture.payload_agents.{sys.argv[1]}")
    options = Options(**json.loads(sys.argv[2]))
    print(json.dumps(asyncio.run(measure(options, program.Conversation, program.plugins()))))
