"""`sia.toml` and `campaign.toml`, read strictly: a fault names the file, the place and the fix."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from orchestrator.engines import named
from orchestrator.errors import ConfigError
from orchestrator.toml_file import read_toml as read_toml
from orchestrator.toml_file import unknown_key, wrong_value

NonEmpty = Annotated[str, Field(min_length=1)]
Positive = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Pause = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Guardrail = Literal["tokens", "iterations", "seconds", "parse_errors", "cost"]
Factor = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Strict(BaseModel):
    """Unknown keys are errors; values are never coerced from another type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Agent(Strict):
    """`[agent]`: what of the repository is the agent, and how it starts."""

    paths: tuple[NonEmpty, ...] = ("instance", "procedures", "tools", "action_schema.xsd")
    command: tuple[NonEmpty, ...] = ("python", "-P", "-m", "instance")
    requirements: str = "instance/requirements.txt"
    build_environments: bool = False

    @field_validator("paths", "command", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return _tuple(value)

    @field_validator("paths")
    @classmethod
    def _inside(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for path in value:
            parts = path.split("/")
            if path.startswith("/") or any(part in ("", ".", "..", ".git") for part in parts):
                raise ValueError(f"{path!r} is not a plain path inside the repository")
        return value


class Engine(Strict):
    """`[engines.NAME]`: the program that answers inference requests (an argv list, run from the repository's top)."""

    command: tuple[NonEmpty, ...] = Field(min_length=1)

    @field_validator("command", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return _tuple(value)


class Main(Strict):
    """`[main]`: the main instance."""

    engine: NonEmpty
    steady_sec: Seconds = 60.0

    @field_validator("steady_sec", mode="before")
    @classmethod
    def _number(cls, value: Any) -> Any:
        return _float(value)


class Promotion(Strict):
    """`[promotion]`: who approves, and when a new generation counts as healthy."""

    policy: Literal["auto", "ask", "never"] = "ask"
    healthy_iterations: Positive = 5
    timeout_sec: Seconds = 300.0
    restart_sec: Seconds = 60.0
    boot_pause_sec: Pause = 2.0

    @field_validator("timeout_sec", "restart_sec", "boot_pause_sec", mode="before")
    @classmethod
    def _number(cls, value: Any) -> Any:
        return _float(value)


class Watch(Strict):
    """`[watch]`: the dashboard. `keys` gives actions other keys: `kill = "x"`, `down = ["j", "ctrl+n"]`."""

    theme: Literal["terminal", "dark", "light"] = "terminal"
    mouse: bool = True
    keys: dict[str, tuple[str, ...]] = Field(default_factory=dict)

    @field_validator("keys", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {key: (item,) if isinstance(item, str) else _tuple(item) for key, item in value.items()}

    @field_validator("keys")
    @classmethod
    def _usable(cls, value: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        from orchestrator.watch.keys import Keymap

        if value:
            Keymap(value)
        return value


class Settings(Strict):
    """The whole `sia.toml`."""

    agent: Agent = Agent()
    engines: dict[str, Engine] = Field(default_factory=dict)
    main: Main | None = None
    promotion: Promotion = Promotion()
    watch: Watch = Watch()

    @model_validator(mode="after")
    def _engine_exists(self) -> Settings:
        if self.main and not named.exists(self.main.engine, self.engines):
            raise ValueError(f"[main] engine = {self.main.engine!r}, but there is no [engines.{self.main.engine}]")
        return self


class CampaignLimits(Strict):
    """`[limits]` of one trial. `cost` is in US dollars; an unknown price counts as over the limit, never as 0."""

    iterations: Positive = 40
    seconds: Seconds = 60.0
    tokens: Positive | None = 200_000
    cost: Seconds | None = None
    memory_mb: Positive | None = None
    processes: Positive | None = None
    disk_mb: Positive | None = None
    upper: Literal["disk", "memory"] = "disk"  # where what an instance writes lies; "memory": a tmpfs of `disk_mb`

    @field_validator("seconds", "cost", mode="before")
    @classmethod
    def _number(cls, value: Any) -> Any:
        return _float(value)


class VerdictRules(Strict):
    """`[verdict]`: error rate, equivalence margin (in reward), and how much worse a guardrail may be (as a factor)."""

    alpha: Fraction = 0.05
    margin: Fraction = 0.05
    tolerance: dict[Guardrail, Factor] = Field(
        default_factory=lambda: dict[Guardrail, float]({"tokens": 1.2, "seconds": 1.5, "parse_errors": 1.0})
    )

    @field_validator("tolerance", mode="before")
    @classmethod
    def _numbers(cls, value: Any) -> Any:
        return {key: _float(item) for key, item in value.items()} if isinstance(value, dict) else value


class Campaign(Strict):
    """The whole `campaign.toml`. `tasks` are directories or glob patterns, relative to the repository's top."""

    seed: int = 1
    candidates: tuple[NonEmpty, ...] = ()
    tasks: tuple[NonEmpty, ...] = Field(min_length=1)
    repeats: Positive = 1
    engine: NonEmpty
    parallel: Positive | None = None  # trials at once; None = number of cores
    limits: CampaignLimits = CampaignLimits()
    verdict: VerdictRules = VerdictRules()

    @field_validator("candidates", "tasks", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return _tuple(value)

    @field_validator("candidates")
    @classmethod
    def _distinct(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) != len(value):
            raise ValueError("a candidate is named twice")
        if "baseline" in value:
            raise ValueError("'baseline' is the current generation; name the branch differently")
        return value


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _float(value: Any) -> Any:
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


M = TypeVar("M", bound=BaseModel)


def validate(model: type[M], values: dict[str, Any], path: Path) -> M:
    """`values` as a `model`. Raises ConfigError with the place, the problem and the fix of each fault."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        faults = [_describe(fault, model) for fault in error.errors()]
        fix = "correct the named keys; see docs/campaign-file.md"
        raise ConfigError("; ".join(faults), where=str(path), fix=fix) from None


def _describe(fault: Any, model: type[BaseModel]) -> str:
    place = ".".join(str(part) for part in fault["loc"]) or "file"
    if fault["type"] == "extra_forbidden":
        return unknown_key(place, _known(model, fault["loc"][:-1]))
    if fault["type"] == "missing":
        return f"{place}: required, but missing"
    return wrong_value(place, fault["msg"].removeprefix("Value error, "), fault.get("input"))


def _known(model: type[BaseModel], location: tuple[Any, ...]) -> list[str]:
    for part in location:
        field = model.model_fields.get(str(part))
        annotation = field.annotation if field else None
        inner = [annotation, *getattr(annotation, "__args__", ())]
        nested = next((a for a in inner if isinstance(a, type) and issubclass(a, BaseModel)), None)
        if nested:
            model = nested
    return list(model.model_fields)


def load_settings(checkout: Path) -> Settings:
    """`sia.toml` at the top of the repository; all defaults if there is none."""
    path = checkout / "sia.toml"
    return validate(Settings, read_toml(path), path) if path.exists() else Settings()


def load_campaign(path: Path) -> Campaign:
    """A campaign file."""
    return validate(Campaign, read_toml(path), path)
