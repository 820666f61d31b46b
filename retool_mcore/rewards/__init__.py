"""Convert the text that the policy wrote to a number."""
