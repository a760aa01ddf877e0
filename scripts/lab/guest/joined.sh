# shellcheck shell=dash
# One of three guests on a network.
. /lab/functions.sh

on_network
/lab/verbs-guest joined "$guest"
