"""From the text that the policy wrote to a number. May be imported by: train. Imports only errors."""
