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

    roots: list[int]
    missing: set[DeliveryKey]
    early: set[DeliveryKey] = field(default_factory=set)
    """Arrived before it was known that they were to come."""
    arrived: set[DeliveryKey] = field(default_factory=set)
    receipts: list[CallReceipt] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        return not self.missing and not self.early

    def join(self, other: Delivery) -> None:
        self.roots += other.roots
        self.missing |= other.missing
        self.early |= other.early
        self.arrived |= other.arrived
        self.receipts += other.receipts

    def take(self, receipt: CallReceipt, hands_on: int | None) -> None:
        """Count what went in and what came out, which goes to group `hands_on`, if it stays with the engine."""
        gone_in = {(receipt.group, *item) for item in receipt.items}
        if gone_in <= self.arrived:  # the engine has repeated a call
            return
        if gone_in & self.arrived:  # it has repeated some of one: nothing of this can be told apart any more
            self.early.add((-1, -1, ""))
        self.receipts.append(receipt)
        self.arrived |= gone_in
        self.early |= gone_in - self.missing
        self.missing -= gone_in
        if hands_on is not None:
            convoy = receipt.items[0][0]
            to_come = {(hands_on, convoy, out[0].id) for out in receipt.outputs if out[1] is None}
            self.missing |= to_come - self.arrived
            self.early -= to_come
