"""The error of a request that a front refuses, or that fails."""

_KINDS = {401: "authentication_error", 429: "rate_limit_error"}


class WireError(Exception):
    """A refused or failed request.

    Args:
        code: word for programs, such as "context_length_exceeded".
        param: the key of the request at fault.
        final: the client's SDK must not send the request again.
    """

    def __init__(self, status: int, code: str, message: str, param: str | None = None, final: bool = False):
        super().__init__(message)
        self.status, self.code, self.param, self.final = status, code, param, final

    def body(self) -> dict:
        kind = _KINDS.get(self.status) or ("server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    def headers(self) -> dict[str, str]:
        return {"x-should-retry": "false"} if self.final else {}
