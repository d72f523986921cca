"""Burns time in a known function until its input is closed; with a second thread that waits."""

import sys
import threading


def simmer(count):
    return sum(number * number for number in range(count))


def boil():
    total = 0
    for number in range(50_000):
        total += number * number % 7
    return total


def cook(stop):
    while not stop.is_set():
        boil()
        simmer(2_000)


def main():
    stop = threading.Event()
    threading.Thread(target=stop.wait, name="waits;<b>", daemon=True).start()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), name="reader", daemon=True).start()
    print("cooking", flush=True)
    cook(stop)


main()
