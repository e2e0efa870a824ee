"""The edit that follows from one just made: the same change in the places that it was not made in yet."""
