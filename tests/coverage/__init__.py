"""The coverage run over torch's own table of operators: which ones expand to programs that are equal to one device."""
