"""Records in; text, HTML and SVG out. It knows neither torch nor the values of this package."""
