"""What both fronts check of a request before they read it, and the response to one that they refuse."""

import hmac

from aiohttp import web

from retool_mcore.gateway.refusal import WireError


def shown_key(request: web.Request) -> bytes:
    """Return the key of `Authorization: Bearer KEY`, empty without one."""
    kind, _, shown = request.headers.get("Authorization", "").partition(" ")
    return key_bytes(shown.strip()) if kind.lower() == "bearer" else b""


def key_bytes(key: str) -> bytes:
    """Return a key as it is compared: a header may hold what is no text."""
    return key.encode(errors="surrogateescape")


def shows(request: web.Request, key: str) -> bool:
    """Whether the request shows this key; how long the answer takes says nothing about the key."""
    return hmac.compare_digest(shown_key(request), key_bytes(key))


def wrong_key() -> WireError:
    """Return the error of a request that shows no key, or another one."""
    return WireError(401, "invalid_api_key", "The API key is missing or wrong: send Authorization: Bearer KEY.")


def check_json(request: web.Request) -> None:
    """Refuse a body that does not call itself JSON. Raises WireError."""
    if request.content_type != "application/json":
        text = f"The body is {request.content_type}: send application/json."
        raise WireError(415, "unsupported_media_type", text)


def problem(error: WireError) -> web.Response:
    """Return the response of a refused or failed request."""
    headers = error.headers() | ({"Retry-After": "1"} if error.status in (429, 503) else {})
    return web.json_response(error.body(), status=error.status, headers=headers)
