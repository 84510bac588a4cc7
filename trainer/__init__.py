"""Everything that learns or measures models; run as ``python -m trainer …`` from the checkout."""
