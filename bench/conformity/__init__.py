"""Scores servers that others have made by `warmroute conform`, and writes the page of results.

subjects  how each server is installed and started
page      the page
"""
