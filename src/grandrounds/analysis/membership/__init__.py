"""A finished run under attack: does its model give away who was trained on?"""
