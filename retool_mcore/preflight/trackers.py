"""Can the loggers of train.loggers and the receiver of traces be used: is the library installed, is there a login, does
the server answer?"""

import configparser
import netrc
import os
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from retool_mcore.errors import UserError
from retool_mcore.ports import otlp_receiver
from retool_mcore.preflight.machine import check_extra, check_loggers

ANSWER_S = 10.0
RECEIVER_ANSWER_S = 3.0  # a run does not depend on it
# Variables that train/traces.py reads, and the least value of each: spans and seconds.
OTEL_NUMBERS = {
    "OTEL_BSP_MAX_QUEUE_SIZE": 1,
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": 1,
    "OTEL_EXPORTER_OTLP_TIMEOUT": 0.1,
    "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": 0.1,
}
WANDB = "https://api.wandb.ai"
WITHOUT = "WANDB_MODE=offline"  # what W&B needs no login and no network for
SILENT_MODES = ("offline", "dryrun", "disabled")


def check_trackers(
    loggers: Sequence[str], folder: str | Path = ".", environment: Mapping[str, str] = os.environ
) -> None:
    """Refuse a logger that would end the run when it begins. Raises UserError.

    folder: of the stage, where W&B looks for settings unless WANDB_DIR names another place.
    """
    check_loggers(loggers)
    if "wandb" in loggers:
        _check_wandb(Path(environment.get("WANDB_DIR") or folder), environment)
    if "mlflow" in loggers:
        check_mlflow(environment, "train.loggers=mlflow")


def check_mlflow(environment: Mapping[str, str], key: str) -> None:
    """Refuse a server of MLFLOW_TRACKING_URI that does not answer; files and databases are made. Raises UserError."""
    server = environment.get("MLFLOW_TRACKING_URI", "")
    if server.startswith(("http://", "https://")) and (reason := _silent(server)):
        raise UserError(
            f"{key}: the server of MLFLOW_TRACKING_URI, {_shown(server)}, does not answer ({reason}): start it, or "
            "leave the variable out, and MLflow writes below the run's folder."
        )


def check_receiver(environment: Mapping[str, str]) -> None:
    """Refuse trace.backend=otlp without its library or an address; report a receiver that does not answer, which stops
    no run. Raises UserError."""
    check_extra("otlp", "trace.backend", "trace.backend=none")
    address = otlp_receiver(environment)
    if address is None:
        raise UserError(
            "trace.backend=otlp sends to the address of OTEL_EXPORTER_OTLP_ENDPOINT, which is not set: set it, for "
            "example to http://localhost:4318, or set trace.backend=none. docs/viewing.md has each service's."
        )
    if not address.startswith(("http://", "https://")):
        raise UserError(
            f"trace.backend=otlp: {_shown(address)} is no address of HTTP: expected http://HOST:PORT or https://HOST "
            "in OTEL_EXPORTER_OTLP_ENDPOINT."
        )
    for name in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        if (protocol := environment.get(name)) and protocol != "http/protobuf":
            raise UserError(
                f"trace.backend=otlp: {name} is {protocol!r}, but spans are sent by http/protobuf: set that, and the "
                "receiver's port for HTTP (often 4318 in place of 4317)."
            )
    for name, least in OTEL_NUMBERS.items():
        if (value := environment.get(name)) and not _at_least(value, least):
            raise UserError(f"trace.backend=otlp: {name} is {value!r}: expected a number of {least:g} or more.")
    if reason := _silent(address, RECEIVER_ANSWER_S):
        print(
            f"trace.backend=otlp: {_shown(address)} does not answer ({reason}). Training does not wait for it; the "
            "metric trace/spans_dropped counts the spans that it does not take.",
            flush=True,
        )


def _at_least(value: str, least: float) -> bool:
    try:
        return float("inf") > (int(value) if least >= 1 else float(value)) >= least
    except ValueError:
        return False


def _check_wandb(folder: Path, environment: Mapping[str, str]) -> None:
    settings = _wandb_settings(folder, environment)
    mode = environment.get("WANDB_MODE") or settings.get("mode", "")
    off = (environment.get("WANDB_DISABLED") or settings.get("disabled", "")).lower() in ("true", "1", "yes")
    if mode in SILENT_MODES or off:
        return
    server = environment.get("WANDB_BASE_URL") or settings.get("base_url") or WANDB
    named = ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")
    if not (any(environment.get(name) for name in named) or settings.get("api_key") or _has_netrc(server, environment)):
        raise UserError(
            f"train.loggers=wandb: there is no login for {_shown(server)}: run `wandb login` or set WANDB_API_KEY, or "
            f"set {WITHOUT}, which writes to the run's folder for `wandb sync`."
        )
    if reason := _silent(server):
        raise UserError(f"train.loggers=wandb: {_shown(server)} does not answer ({reason}): set {WITHOUT} here.")


def _wandb_settings(folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """The user's settings file and, over it, that of the folder of the run, as W&B reads them."""
    home = environment.get("WANDB_CONFIG_DIR") or "~/.config/wandb"
    parser = configparser.ConfigParser(interpolation=None)
    for file in (Path(home).expanduser() / "settings", folder / "wandb" / "settings"):
        try:
            parser.read(file, encoding="utf-8")
        except (OSError, UnicodeDecodeError, configparser.Error) as error:
            raise UserError(f"train.loggers=wandb: W&B's settings {file} cannot be read: mend them.") from error
    return dict(parser["default"]) if parser.has_section("default") else {}


def _has_netrc(server: str, environment: Mapping[str, str]) -> bool:
    files = [environment["NETRC"]] if environment.get("NETRC") else ["~/.netrc", "~/_netrc"]
    file = next((path for path in (Path(name).expanduser() for name in files) if path.is_file()), None)
    try:
        login = netrc.netrc(file).authenticators(urlsplit(server).netloc) if file else None
    except (OSError, netrc.NetrcParseError):
        return False
    return bool(login and login[2])


def _silent(server: str, seconds: float = ANSWER_S) -> str:
    """Why a server does not answer, "" where it does: any answer counts, a refusal or a strange certificate too."""
    try:
        urllib.request.urlopen(server, timeout=seconds).close()
    except urllib.error.HTTPError:
        return ""
    except OSError as error:  # URLError and time-outs are some
        reason = getattr(error, "reason", error)
        return "" if "CERTIFICATE" in str(reason) else str(reason) or type(reason).__name__
    except ValueError:
        return "it is no address"
    return ""


def _shown(server: str) -> str:
    """The address without a password."""
    parts = urlsplit(server)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
