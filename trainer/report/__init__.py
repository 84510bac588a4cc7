"""Run folders → one self-contained HTML page (``python -m trainer report RUN``)."""
