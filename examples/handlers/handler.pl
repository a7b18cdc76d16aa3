#!/usr/bin/perl
# A handler of scheduled events for one VM, in Perl with only core modules. Copy it, and adapt it.
#
#     perl handler.pl [MARKER]
#
# The VM counts as prepared while the file MARKER (default: `drained`) exists. Put your own work into `prepare` and
# `recover`. If a reboot interrupts one of them, it is called again. The endpoint provides the VM's name, spelled as in
# Resources.
use strict;
use warnings;
use HTTP::Tiny;
use JSON::PP;

my $BASE   = 'http://169.254.169.254/metadata/';
my $EVENTS = $BASE . 'scheduledevents?api-version=2020-07-01';
my $NAME   = $BASE . 'instance/compute/name?api-version=2021-02-01&format=text';
my $MARKER = $ARGV[0] // 'drained';
my $http   = HTTP::Tiny->new(
    default_headers => { Metadata => 'true' },
    keep_alive      => 0,
    timeout         => 130,      # the first answer may take two minutes
    proxy           => undef,    # never through a proxy, whatever the environment says
    http_proxy      => undef,
);

# Send a GET, or a POST with a body. Dies if no complete answer arrives in time, or if the status is not 200.
sub ask {
    my ($url, $body) = @_;
    my $answer = defined $body ? $http->post($url, { content => $body }) : $http->get($url);
    die "status $answer->{status}\n" if $answer->{status} != 200;
    return $answer->{content};
}

# Get the VM ready for an interruption: drain, fail over, save. Return when the VM is ready.
sub prepare {
    open my $file, '>', $MARKER or die "cannot write $MARKER: $!\n";
    close $file;
}

# Put the VM back into service.
sub recover {
    unlink $MARKER;
}

# Prepare, approve or recover, as the document requires. Dies if the document has no Events.
sub handle {
    my ($document, $name, $approved) = @_;
    die "no Events\n" if ref $document->{Events} ne 'ARRAY';
    my @mine;
    for my $event (@{ $document->{Events} }) {
        push @mine, $event if grep { $_ eq $name } @{ $event->{Resources} };
    }
    prepare() if @mine && !-e $MARKER;
    for my $event (@mine) {
        my $id = $event->{EventId};
        if ($event->{EventStatus} eq 'Scheduled' && !$approved->{$id}) {
            ask($EVENTS, encode_json({ StartRequests => [{ EventId => $id }] }));
            $approved->{$id} = 1;    # only after 200: an approval without an answer is sent again
        }
    }
    recover() if !@mine && -e $MARKER;
}

$| = 1;
my ($name, %approved) = ('');
while (1) {
    eval {
        my $document = decode_json(ask($EVENTS));
        $http->timeout(10);
        $name = $name || ask($NAME);
        handle($document, $name, \%approved);
        1;
    } or print "no usable answer: $@";    # the VM keeps its state
    sleep 1;
}
