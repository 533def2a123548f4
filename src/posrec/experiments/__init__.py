"""The paper's experiments, tables and figures, one module each."""
