"""How long a run is and what electricity costs: what turns a plan into days, money and CO2."""

import math

import streamlit as st

from app import url
from app.components.text import quiet
from kareus.core.plan import PlanPoint
from kareus.core.workload import Workload
from kareus.report import format as fmt
from kareus.report.comparison import RunCost, run_cost

_FIELDS = {
    "tokens": ("Tokens of the run (billions)", 1000.0, "%.0f", 100.0),
    "price": ("Price of a kWh", 0.15, "%.3f", 0.01),
    "carbon": ("CO₂ of a kWh (kg)", 0.35, "%.3f", 0.01),
}
CURRENCY = "USD"


def draw_run_settings() -> None:
    """Draw the fields; what is entered goes to the URL."""
    for name, (label, default, form, step) in _FIELDS.items():
        key = f"run_{name}"
        st.session_state[key] = _value(name, default)
        st.number_input(
            f"{label}, {CURRENCY}" if name == "price" else label,
            min_value=0.0 if name != "tokens" else 1.0,
            step=step,
            format=form,
            key=key,
            on_change=_store,
            args=(name,),
        )
    quiet("Electricity at the board: cooling and hosts are not counted.")


def cost_of_run(plan: PlanPoint, workload: Workload) -> RunCost:
    """Return what the run takes under a plan, all GPUs of the job."""
    return run_cost(
        plan,
        num_tokens=num_tokens(),
        tokens_per_iteration=workload.tokens_per_iteration,
        gpus_per_stage=workload.parallelism.gpus_per_stage,
        price_per_kwh=_value("price", _FIELDS["price"][1]),
        carbon_kg_per_kwh=_value("carbon", _FIELDS["carbon"][1]),
    )


def num_tokens() -> float:
    """Return the tokens of the run."""
    return _value("tokens", _FIELDS["tokens"][1]) * 1e9


def tokens_words(tokens: float) -> str:
    """Return a number of tokens in billions or trillions."""
    if tokens >= 1e12:
        return f"{fmt.number(tokens / 1e12)} trillion tokens"
    return f"{fmt.number(tokens / 1e9)} billion tokens"


def _store(name: str) -> None:
    url.put(name, f"{st.session_state[f'run_{name}']:g}")


def _value(name: str, default: float) -> float:
    """The URL's value where it is a usable number, else the default."""
    try:
        value = float(url.get(name) or "")
    except ValueError:
        return default
    usable = math.isfinite(value) and 0 <= value < 1e9 and (value > 0 or name != "tokens")
    return value if usable else default
