"""The one exception that means: the user can mend this."""


class UserError(Exception):
    """Wrong input, found before any engine starts.

    The message is one or two plain sentences: what was wrong, what was expected, what to do. The command line prints it
    without a traceback and exits with code 2.
    """
