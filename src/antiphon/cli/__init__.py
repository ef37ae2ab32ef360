"""The command ``antiphon``: every verb is a module here, and every module sits on the layers below.

Receives arguments from the shell; hands them to the same public API that programs use.
"""
