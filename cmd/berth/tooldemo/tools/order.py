"""Orders something: looks up its price, remembers the order, and signs it."""

import builtins
import hashlib
import hmac
import os

import berth_demo_prices


def order(agent_state, item, count=1):
    first = not hasattr(builtins, "ordered")
    builtins.ordered = os.environ["DEMO_KEY"]  # which no later run may find
    total = berth_demo_prices.total(item, count)
    orders = agent_state.memory.get_block("orders").value
    agent_state.memory.update_block_value(label="orders", value=orders + "%d %s\n" % (count, item))
    key = os.environ["DEMO_KEY"] + os.environ["DEMO_TOKEN"]
    print("ordered", count, item)
    return {"total": total, "first": first, "signature": hmac.new(key.encode(), item.encode(), hashlib.sha256).hexdigest()}
