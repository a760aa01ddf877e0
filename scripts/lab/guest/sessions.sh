# shellcheck shell=dash
# One of three guests on a network, each a node with keys.
. /lab/functions.sh

on_network
/lab/fabric-guest joined "$guest"
