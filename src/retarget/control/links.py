"""Connects to targets, as far as the leases of this server allow it."""

from collections.abc import Callable
from functools import partial

from retarget import drivers
from retarget.control.leases import LeaseKeeper
from retarget.control.secrets import unseal
from retarget.core.driver import ActingLease, ActsUnderLease, Driver, MayBeLocal
from retarget.core.errors import Invalid, TargetUnreachable
from retarget.core.leases import Lease, lease_name
from retarget.core.links import Links
from retarget.core.targets import Target


def open_driver(links: Links, secret: bytes, target: Target) -> Driver:
    """Return the driver of a stored target, or raise TargetUnreachable."""
    try:
        config = unseal(target.config, secret=secret, target=target.name)
        return drivers.connect(target.kind, config, links)
    except Invalid as error:  # valid when stored: a package was removed, or the kind changed
        raise TargetUnreachable(f"target {target.name!r} cannot be used: {error}") from None


def is_local(links: Links, secret: bytes, target: Target) -> bool:
    """Whether a target belongs to the machine that this server runs on."""
    try:
        if not issubclass(drivers.load(target.kind), MayBeLocal):
            return False  # connecting may take long
        driver = open_driver(links, secret, target)
    except (Invalid, TargetUnreachable):
        return False
    return isinstance(driver, MayBeLocal) and driver.is_local()


class TargetLinks:
    """The targets that this server can reach, and its leases, which say what it may do there."""

    def __init__(
        self,
        leases: LeaseKeeper,
        secret: bytes,
        open_driver: Callable[[Target], Driver],
        lease: Lease | None = None,
    ) -> None:
        self.leases = leases
        self._secret = secret
        self._open_driver = open_driver
        self._lease = lease

    def under(self, lease: Lease) -> "TargetLinks":
        """Return the links for what is decided under this lease.

        Hosts refuse requests over them once another server has taken it.
        """
        return TargetLinks(self.leases, self._secret, self._open_driver, lease)

    def connect(self, target: Target) -> Driver:
        """Return the driver of a target.

        Raise TargetUnreachable if the target belongs to another machine, and LeaseLost if another
        server has taken the lease.
        """
        if self._lease is not None:
            self.leases.check(self._lease)
        self._check_belongs_here(target)
        driver = self._open_driver(target)
        if self._lease is not None and isinstance(driver, ActsUnderLease):
            driver.act_under(self._shown_to_hosts(self._lease))
        return driver

    def _check_belongs_here(self, target: Target) -> None:
        url = self.leases.elsewhere(target.name)
        if url is not None:
            raise TargetUnreachable(
                f"target {target.name!r} belongs to another machine, "
                + (f"whose server is at {url}" if url else "where no server runs now")
            )

    def _shown_to_hosts(self, lease: Lease) -> ActingLease:
        name = lease_name(self._secret, lease.target)
        return ActingLease(name, lease.epoch, partial(self.leases.check, lease))
