"""The commands of the command line, a file for each thing that they are about.

told     how a command is made: what goes wrong is told in one sentence
plans    report, simulate, compare: what to do with a plan's file
"""
