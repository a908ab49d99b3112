"""Model classes that SGLang finds without importing all its own: ``SGLANG_EXTERNAL_MODEL_PACKAGE``.

It looks through this package first; where an architecture is not among them it imports the rest.
"""
