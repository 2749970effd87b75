"""A conversation of Pydantic AI, forked as a thread, and read as messages for Anthropic. No network."""

import asyncio
import tempfile

from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation
from pydantic_ai.models.test import TestModel

import everthread
from everthread.adapters.pydantic_ai import EverthreadConversationStore
from everthread.messages import for_anthropic

agent = Agent(TestModel(custom_output_text="Nothing is open."))


async def talk(store: everthread.Store) -> None:
    conversations = EverthreadConversationStore(store)
    for text in ("What is open?", "Sure?"):
        conversation = await conversations.load("c1") or Conversation(conversation_id="c1")
        await conversations.save(await agent.run(text, conversation=conversation))
    fork = await conversations.fork("c1", at=2, new_conversation_id="what-if")
    print("the fork has", len(fork.messages), "messages")


with tempfile.TemporaryDirectory() as folder, everthread.open(f"sqlite:///{folder}/agent.db") as store:
    asyncio.run(talk(store))
    thread = store.thread("pydantic_ai/c1")
    for message in for_anthropic(thread.messages, cache=None)["messages"]:
        print(message["role"], [block["text"] for block in message["content"]])
