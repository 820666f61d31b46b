"""Can the loggers of train.loggers be used: is their library installed, is there a login, does their server answer?"""

import configparser
import netrc
import os
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from retool_mcore.errors import UserError
from retool_mcore.preflight.machine import check_loggers

ANSWER_S = 10.0
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


def _silent(server: str) -> str:
    """Why a server does not answer, "" where it does: any answer counts, a refusal or a strange certificate too."""
    try:
        urllib.request.urlopen(server, timeout=ANSWER_S).close()
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
