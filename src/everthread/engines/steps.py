"""Steps under whatever engine: a step is entered with the pointer that the workflow believed in. The async
form; the blocking one is ``everthread.engines.sync.steps``."""

from everthread.engines.aio.steps import AsyncEngineStep, append, end, enter_step, open_thread, rewind
from everthread.engines.pointers import Execution

__all__ = ["AsyncEngineStep", "Execution", "append", "end", "enter_step", "open_thread", "rewind"]
