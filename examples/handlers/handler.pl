#!/usr/bin/perl
# A handler of scheduled events in Perl, with nothing but core modules; for one VM, to be copied.
#
#     perl handler.pl [MARKER]
#
# The VM is prepared while the file MARKER (`drained`) exists. Put your own work into `prepare` and `recover`: both may
# be called twice, after a reboot for example. The name of the VM comes from the endpoint, as it stands in Resources.
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

# GET, or POST a body. Dies where there is no whole answer in time, or another status than 200.
sub ask {
    my ($url, $body) = @_;
    my $answer = defined $body ? $http->post($url, { content => $body }) : $http->get($url);
    die "status $answer->{status}\n" if $answer->{status} != 200;
    return $answer->{content};
}

# Get ready to be interrupted: drain, fail over, save. Returns when that is done.
sub prepare {
    open my $file, '>', $MARKER or die "cannot write $MARKER: $!\n";
    close $file;
}

# Take up work again.
sub recover {
    unlink $MARKER;
}

# Bring the VM into the state that the document asks for; dies where it has no Events.
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
    } or print "no answer that says anything: $@";    # all stays as it is
    sleep 1;
}
