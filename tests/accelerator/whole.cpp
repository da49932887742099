// All of the extension in one piece: to read torch's headers takes longer than to compile what is ours.

#include "machine.cpp"
#include "device.cpp"
#include "kernels.cpp"
#include "register.cpp"
