"""Convoys: which of the tasks that an engine was given have arrived whole (`engine_executor.py`)."""

from __future__ import annotations

from dataclasses import field

from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.executors.engines.coordinator import CallReceipt

DeliveryKey = tuple[int, int, str]
"""A task before a group: the group, the convoy that its row names, its id."""


@fast_dataclass
class Delivery:
    """Tasks that went through calls together, and what is known of them."""

    inputs: list[int]
    expected: set[DeliveryKey]
    unexpected: set[DeliveryKey] = field(default_factory=set)
    """Arrived before it was known that they were to come."""
    received: set[DeliveryKey] = field(default_factory=set)
    receipts: list[CallReceipt] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        return not self.expected and not self.unexpected

    def merge(self, other: Delivery) -> None:
        self.inputs += other.inputs
        self.expected |= other.expected
        self.unexpected |= other.unexpected
        self.received |= other.received
        self.receipts += other.receipts

    def add_receipt(self, receipt: CallReceipt, hands_on: int | None) -> None:
        """Count what went in and what came out, which goes to group `hands_on`, if it stays with the engine."""
        gone_in = {(receipt.group, *item) for item in receipt.inputs}
        if gone_in <= self.received:  # the engine has repeated a call
            return
        if gone_in & self.received:  # it has repeated some of one: nothing of this can be told apart any more
            self.unexpected.add((-1, -1, ""))
        self.receipts.append(receipt)
        self.received |= gone_in
        self.unexpected |= gone_in - self.expected
        self.expected -= gone_in
        if hands_on is not None:
            convoy = receipt.inputs[0][0]
            to_come = {(hands_on, convoy, out[0].id) for out in receipt.outputs if out[1] is None}
            self.expected |= to_come - self.received
            self.unexpected -= to_come
