"""Who may do what: keys, tokens and certificates become a caller with grants.

    credentials --> Gate --> Caller --> require("produce", stream), require("consume", view), require_room()

`gate` authenticates; `caller` is what the tiers see of it. Keys stand in a file of the data directory (`keys`), the
rest in an access file (`policy`): tokens of another issuer (`tokens`), TLS and clients' certificates (`certificates`).
"""

from penstock.access.caller import ANYONE, CALLER, Caller, RowRule, caller_of
from penstock.access.certificates import CERTIFIED, NOT_CERTIFIED, Certified, certified
from penstock.access.gate import NO_POLICY, Gate, subprotocol
from penstock.access.grants import EVERYTHING, Grants
from penstock.access.keys import KeyFile
from penstock.access.policy import Policy, read_policy

__all__ = [
    "ANYONE",
    "CALLER",
    "CERTIFIED",
    "EVERYTHING",
    "NOT_CERTIFIED",
    "NO_POLICY",
    "Caller",
    "Certified",
    "Gate",
    "Grants",
    "KeyFile",
    "Policy",
    "RowRule",
    "caller_of",
    "certified",
    "read_policy",
    "subprotocol",
]
