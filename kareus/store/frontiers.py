"""Iteration frontiers: plans as indices into one table of instruction options per method.

A frontier of 50 plans repeats a few dozen options thousands of times; stored by index it is read
back quickly and exactly.
"""

import json
from collections.abc import Sequence

from pydantic import TypeAdapter

from kareus.core.plan import InstructionOption, Method, Plan
from kareus.errors import NotFoundError, StoreError
from kareus.store.records import PlanSummary, to_json
from kareus.store.sqlite import Connections
from kareus.store.studies import require_study

INSTRUCTION_OPTIONS: TypeAdapter[tuple[InstructionOption, ...]] = TypeAdapter(
    tuple[InstructionOption, ...]
)


class FrontierTable:
    """The part of the store that keeps frontiers and plans."""

    _connections: Connections

    def save_frontier(self, study: str, method: Method, plans: Sequence[Plan]) -> None:
        """Store a method's plans, replacing its earlier ones, in one transaction.

        Args:
            study: The study's id.
            method: Whose plans they are.
            plans: Fastest first; their numbers must differ.

        Raises:
            StoreError: A number appears twice, or a plan is another method's.
            NotFoundError: There is no such study.
        """
        numbers = [plan.number for plan in plans]
        if len(set(numbers)) != len(numbers) or any(plan.method is not method for plan in plans):
            raise StoreError(
                f"the {method} frontier of {study} has plans with equal numbers or of another "
                "method: number them per method, fastest first"
            )
        table, choices = _indexed(plans)
        with self._connections.writing() as db:
            require_study(db, study)
            db.execute("DELETE FROM frontiers WHERE study = ? AND method = ?", [study, method])
            db.execute(
                "INSERT INTO frontiers (study, method, options) VALUES (?, ?, ?)",
                [study, method.value, INSTRUCTION_OPTIONS.dump_json(table).decode()],
            )
            db.conn.executemany(
                "INSERT INTO plans (study, method, number, iteration_time_s, effective_energy_j,"
                " pipeline_energy_j, bound_j, choices) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (
                        study,
                        method.value,
                        plan.number,
                        plan.iteration_time_s,
                        plan.effective_energy_j,
                        plan.pipeline_energy_j,
                        plan.bound_j,
                        to_json(indices),
                    )
                    for plan, indices in zip(plans, choices, strict=True)
                ],
            )

    def load_frontier(self, study: str, method: Method) -> tuple[Plan, ...]:
        """Return a method's plans, fastest first; empty where none are stored."""
        return self._load(study, method, None)

    def load_plan(self, study: str, method: Method, number: int) -> Plan:
        """Return one plan.

        Raises:
            NotFoundError: There is no such plan; the message says which there are.
        """
        plans = self._load(study, method, number)
        if plans:
            return plans[0]
        numbers = [summary.number for summary in self.plan_summaries(study, method)]
        there = f"it has {min(numbers)} to {max(numbers)}" if numbers else "it has none"
        raise NotFoundError(f"study {study} has no {method} plan {number}: {there}")

    def plan_summaries(self, study: str, method: Method | None = None) -> tuple[PlanSummary, ...]:
        """Return the figures of a method's plans, or of all methods', fastest first."""
        with self._connections.reading() as db:
            rows = db.execute(
                "SELECT method, number, iteration_time_s, effective_energy_j, pipeline_energy_j,"
                " bound_j FROM plans WHERE study = ? AND method LIKE ? ORDER BY method, number",
                [study, method.value if method is not None else "%"],
            ).fetchall()
        return tuple(
            PlanSummary(
                method=Method(row[0]),
                number=row[1],
                iteration_time_s=row[2],
                effective_energy_j=row[3],
                pipeline_energy_j=row[4],
                bound_j=row[5],
            )
            for row in rows
        )

    def _load(self, study: str, method: Method, number: int | None) -> tuple[Plan, ...]:
        with self._connections.reading() as db:
            # One statement, so that options and plans are of the same frontier even if another
            # process replaces it meanwhile.
            rows = db.execute(
                "SELECT f.options, p.number, p.iteration_time_s, p.effective_energy_j,"
                " p.pipeline_energy_j, p.bound_j, p.choices FROM plans p"
                " JOIN frontiers f ON f.study = p.study AND f.method = p.method"
                " WHERE p.study = ? AND p.method = ? AND (? IS NULL OR p.number = ?)"
                " ORDER BY p.number",
                [study, method.value, number, number],
            ).fetchall()
        if not rows:
            return ()
        table = INSTRUCTION_OPTIONS.validate_json(rows[0][0])
        return tuple(
            Plan(
                number=row[1],
                method=method,
                iteration_time_s=row[2],
                effective_energy_j=row[3],
                pipeline_energy_j=row[4],
                bound_j=row[5],
                choices=tuple(tuple(table[i] for i in stage) for stage in json.loads(row[6])),
            )
            for row in rows
        )


def _indexed(
    plans: Sequence[Plan],
) -> tuple[tuple[InstructionOption, ...], list[list[list[int]]]]:
    """Return the distinct options of the plans, and each plan's choices as positions in them."""
    positions: dict[InstructionOption, int] = {}
    # Hashing an option walks all its configurations; most occurrences are the same objects.
    known: dict[int, int] = {}

    def position(option: InstructionOption) -> int:
        found = known.get(id(option))
        if found is None:
            found = positions.setdefault(option, len(positions))
            known[id(option)] = found
        return found

    choices = [[[position(o) for o in stage] for stage in plan.choices] for plan in plans]
    return tuple(positions), choices
