"""Convert reasoning in text to verified traces with code: ReTool's cold-start data (arXiv 2504.11536, section 2.1).

One file a stage, in the order of `stages.py`; `pipeline.py` runs them."""
