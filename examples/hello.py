"""Two nodes, one message. Both live in this process; two processes look just the same."""

import antiphon

GREETING = 200  # kinds from 64 to 65535 are yours

alice = antiphon.Node(1)
bob = antiphon.Node(2)
inbox = bob.inbox(GREETING)  # registered before start: no early message finds its kind unknown

with alice, bob:
    alice.add_peer(2, bob.address)
    alice.send(2, b"hello", kind=GREETING)
    source, data = inbox.receive(timeout=5.0)
    print(f"node {source} says {data.decode()}")

    # Bob never heard of Alice's address. The connection that she opened made her known.
    replies = alice.inbox(GREETING)
    bob.send(1, b"hello yourself", kind=GREETING)
    print(f"and the answer is: {replies.receive(timeout=5.0)[1].decode()}")
