"""Tools that a policy calls: the interface, those delivered, and how a configuration names them."""
