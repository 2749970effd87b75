"""Three lifetimes of state: scratch (this process), checkpoints (the session), a person's data (apart)."""

import tempfile

import everthread

with (
    tempfile.TemporaryDirectory() as folder,
    # The keys of persons belong elsewhere; here the example cleans up after itself.
    everthread.open(f"sqlite:///{folder}/agent.db", keyring=f"{folder}/keyring") as store,
):
    with store.session("research", user_id="u1") as session:
        session.set_working("draft", {"pages": 3})
        session.set_working("cursor", 17)
        session.checkpoint("outline done", include_keys=["draft"])
        store.users.set("u1", "language", "de")
        try:
            session.checkpoint("wrong", include_keys=["nowhere"])
        except everthread.EverthreadError as error:
            print("refused:", type(error).__name__)

    with store.session("research") as session:
        print("scratch:", session.get_working("draft"), session.get_working("cursor"))
        print("checkpoint:", session.get_checkpoint("outline done"))
        print("deleted:", store.users.delete_user("u1"), "left:", store.users.get("u1", "language"))
        print("checkpoint still there:", session.get_checkpoint("outline done") is not None)
