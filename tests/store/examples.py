"""Small values for the store's tests, and hypothesis strategies for all that plans can hold."""

from hypothesis import strategies as st

from kareus.core.configuration import Configuration, LaunchPoint
from kareus.core.measurement import FailedMeasurement, Measurement, PartitionOption, SourceKind
from kareus.core.partition import Execution
from kareus.core.plan import InstructionOption, Method, Plan


def measurement(
    clock: int = 900, *, partition: str = "fwd_attn", repeat: int = 0, sms: int | None = 3
) -> Measurement:
    return Measurement(
        partition=partition,
        configuration=Configuration(
            clock_mhz=clock,
            sm_allocation=sms,
            launch_point=LaunchPoint.NORM_0 if sms is not None else None,
        ),
        time_s=clock / 1e5 + repeat / 1e7,
        energy_j=clock / 1e3,
        source=SourceKind.SIMULATOR,
        repeat=repeat,
        conditions={"temperature_c": 41.5},
    )


positive = st.floats(min_value=1e-9, max_value=1e9, allow_subnormal=False)
names = st.sampled_from(["fwd_attn", "fwd_mlp", "seq_bwd_mlp", "préprocess"])
configurations = st.builds(
    Configuration,
    clock_mhz=st.integers(100, 3000),
    sm_allocation=st.none() | st.integers(1, 132),
    launch_point=st.none() | st.sampled_from(LaunchPoint),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | positive | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2)
    ),
    max_leaves=4,
)
measurements = st.builds(
    Measurement,
    partition=names,
    configuration=configurations,
    time_s=positive,
    energy_j=st.none() | positive,
    source=st.sampled_from(SourceKind),
    time_spread_s=st.none() | positive,
    energy_spread_j=st.none() | positive,
    repeat=st.integers(0, 3),
    conditions=st.dictionaries(st.text(max_size=8), json_values, max_size=3),
)
failures = st.builds(
    FailedMeasurement,
    partition=names,
    configuration=configurations,
    reason=st.text(min_size=1),
    repeat=st.integers(0, 3),
)
partition_options = st.builds(
    PartitionOption, configuration=configurations, time_s=positive, energy_j=positive
)
instruction_options = st.builds(
    InstructionOption,
    clock_mhz=st.integers(100, 3000),
    execution=st.sampled_from([Execution.NANOBATCH, Execution.SEQUENTIAL]),
    time_s=positive,
    effective_energy_j=st.floats(-1e3, 1e6),
    configurations=st.lists(st.tuples(names, configurations), max_size=4).map(tuple),
)
choices = st.lists(
    st.lists(instruction_options, max_size=3).map(tuple), min_size=1, max_size=3
).map(tuple)


def plan(number: int, method: Method = Method.KAREUS, num_instructions: int = 2) -> Plan:
    option = InstructionOption(
        clock_mhz=1200 + 30 * number,
        execution=Execution.NANOBATCH,
        time_s=0.1 + number / 7,
        effective_energy_j=10.0 - number / 3,
        configurations=(("fwd_attn", Configuration(clock_mhz=1200 + 30 * number)),),
    )
    return Plan(
        number=number,
        method=method,
        iteration_time_s=1.0 + number / 3,
        effective_energy_j=100.0 - number,
        pipeline_energy_j=200.0 - number / 7,
        bound_j=None if number == 0 else 199.0,
        choices=((option,) * num_instructions, (option,) * num_instructions),
    )
