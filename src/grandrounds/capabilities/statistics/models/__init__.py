"""Models of whole columns, fitted from sums over hospitals."""
