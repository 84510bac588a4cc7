"""The two tiny models that let the whole loop run on a CPU, and the recipes that build them."""
