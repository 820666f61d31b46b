"""Who may use a front: the key that clients show."""

from retool_mcore.errors import UserError

KEY = "RETOOL_API_KEY"  # the environment variable of the key
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def check_key(host: str, key: str | None) -> None:
    """Refuse a server that other machines reach without a key, and a key that no header can hold. Raises UserError."""
    if not key and host not in LOOPBACK:
        raise UserError(
            f"A server at {host or 'all addresses'} is open to everybody who reaches it: set {KEY} in its environment, "
            "and give clients the same key."
        )
    if key and not (key.isascii() and key.isprintable() and " " not in key):
        raise UserError(f"{KEY} must be printable ASCII characters without spaces, as an HTTP header takes them.")
