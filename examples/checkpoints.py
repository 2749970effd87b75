"""An agent that is saved as it works, fails, is rolled back, and goes on in the next run.

Run it twice: the second run finds what the first one left in checkpoints.db.
"""

from everthread import Checkpointable, CheckpointManager, checkpoint, register_migration

manager = CheckpointManager("sqlite:///checkpoints.db")


class Ledger(Checkpointable):
    def __init__(self):
        self.booked = []


class Bookkeeper(Checkpointable):
    def __init__(self):
        self.done = 0
        self.ledger = Ledger()

    def _checkpoint_version(self):
        return "1.1"

    @checkpoint(manager, key="bookkeeper", every=2)
    def book(self, amount):
        self.ledger.booked.append(amount)
        self.done += 1


# Bookkeepers of version 1.0 kept no count.
register_migration(
    "Bookkeeper", from_version="1.0", fn=lambda state: {**state, "done": len(state["ledger"]["booked"])}
)

agent = Bookkeeper()
if "bookkeeper" in manager.list_keys():
    manager.load("bookkeeper", agent)
print(f"found {agent.done} bookings: {agent.ledger.booked}")

for amount in (agent.done + 1, agent.done + 2):
    agent.book(amount)

try:
    with manager.rollback_context("bookkeeper", agent):
        agent.book(-1)
        raise ValueError("a negative amount")
except ValueError as error:
    print(f"rolled back: {error}; booked is {agent.ledger.booked} again")

print(f"checkpoints: {len(manager.history('bookkeeper', n=None))}")
print(f"not saved yet: {manager.diff('bookkeeper', agent=agent)['changed']}")
manager.close()
